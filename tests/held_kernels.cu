// Sixteen more kernels that the suite does not have, written and put to the reference when formula and occupancy model had been changed.
#include <stdint.h>
#define K extern "C" __global__ void
K csrgraph(const uint32_t* start,const uint32_t* nb,const float* v,float* o,int n){ // thread a vertex, random neighbours
  int g=blockIdx.x*blockDim.x+threadIdx.x; if(g>=n) return; float s=0; for(uint32_t e=start[g];e<start[g+1];e++) s+=v[nb[e]]; o[g]=s/(1+start[g+1]-start[g]);
}
K heat7(const float* a,float* o,int X,int Y,int Z){
  int x=blockIdx.x*32+threadIdx.x,y=blockIdx.y*8+threadIdx.y; if(x<1||y<1||x>=X-1||y>=Y-1) return; int P=X*Y;
  float b=a[y*X+x],c=a[P+y*X+x]; for(int z=1;z<Z-1;z++){ float t=a[(z+1)*P+y*X+x]; int i=z*P+y*X+x; o[i]=c*.4f+.1f*(a[i-1]+a[i+1]+a[i-X]+a[i+X]+b+t); b=c; c=t; }
}
K treesum(const float* a,float* o){ // interleaved addressing: bank conflicts, divergence
  __shared__ float s[256]; int t=threadIdx.x; s[t]=a[blockIdx.x*512+t]+a[blockIdx.x*512+256+t]; __syncthreads();
  for(int d=1;d<256;d*=2){ int i=2*d*t; if(i<256) s[i]+=s[i+d]; __syncthreads(); } if(t==0) o[blockIdx.x]=s[0];
}
K rowskip(const float* a,float* o,int n,int stride,int times){ // strided, each line by two warps
  int g=blockIdx.x*blockDim.x+threadIdx.x; float s=0; for(int k=0;k<times;k++){ int i=(g*stride+k*37)%n; s+=a[i]; } o[g]=s;
}
K votes(const uint32_t* a,uint32_t* bins,int n){ for(int i=blockIdx.x*blockDim.x+threadIdx.x;i<n;i+=gridDim.x*blockDim.x) atomicAdd(&bins[a[i]],1u); }
K collatz(const uint32_t* a,uint32_t* o,int n){ int g=blockIdx.x*blockDim.x+threadIdx.x; if(g>=n) return; uint32_t x=a[g]; int c=0; while(x!=1&&c<200){ x=x&1?3*x+1:x>>1; c++; } o[g]=c; }
K bigshared(const float* m,const float* v,float* o,int rounds){ // 1 block an SM: 36 KB
  __shared__ float s[96][96]; int t=threadIdx.x; for(int r=0;r<96;r++) s[r][t]=m[(blockIdx.x*96+r)*96+t]; float x=v[blockIdx.x*96+t]; __syncthreads();
  __shared__ float y[96]; for(int q=0;q<rounds;q++){ y[t]=x; __syncthreads(); float z=0; for(int k=0;k<96;k++) z+=s[k][t]*y[k]; x=z/(1+fabsf(z)); __syncthreads(); } o[blockIdx.x*96+t]=x;
}
K chain(const float* a,float* o,int n){ int g=blockIdx.x*blockDim.x+threadIdx.x; float x=a[g],y=0; for(int k=0;k<n;k++){ x=__sinf(x)*1.3f+y; y=sqrtf(x*x+.1f); x=x*.7f-y*__expf(-x*x); } o[g]=x+y; }
K bitonic(uint32_t* a){
  __shared__ uint32_t s[256]; int t=threadIdx.x; s[t]=a[blockIdx.x*256+t]; __syncthreads();
  for(int k=2;k<=256;k*=2) for(int j=k/2;j;j/=2){ int p=t^j; if(p>t){ uint32_t x=s[t],y=s[p]; if((x>y)==((t&k)==0)){ s[t]=y; s[p]=x; } } __syncthreads(); } a[blockIdx.x*256+t]=s[t];
}
K median3(const float* a,float* o,int w,int h){
  int x=blockIdx.x*16+threadIdx.x,y=blockIdx.y*16+threadIdx.y; if(x<1||y<1||x>=w-1||y>=h-1) return; float v[9]; int c=0;
  #pragma unroll
  for(int j=-1;j<2;j++)
  #pragma unroll
   for(int i=-1;i<2;i++) v[c++]=a[(y+j)*w+x+i];
  #pragma unroll
  for(int i=0;i<5;i++)
  #pragma unroll
   for(int j=i+1;j<9;j++){ float lo=fminf(v[i],v[j]),hi=fmaxf(v[i],v[j]); v[i]=lo; v[j]=hi; } o[y*w+x]=v[4];
}
K tnaive(const float* a,float* o,int w,int h){ int x=blockIdx.x*32+threadIdx.x,y=blockIdx.y*8+threadIdx.y; o[x*h+y]=a[y*w+x]; }
K mdforce(const float4* p,const uint32_t* nb,float4* f,int n,int m){ // neighbours near by
  int g=blockIdx.x*blockDim.x+threadIdx.x; if(g>=n) return; float4 q=p[g]; float x=0,y=0,z=0; for(int k=0;k<m;k++){ float4 r=p[nb[k*n+g]]; float dx=q.x-r.x,dy=q.y-r.y,dz=q.z-r.z,d=dx*dx+dy*dy+dz*dz; if(d<.5f&&d>0){ float i=1/d,i3=i*i*i; float w=i3*(i3-.5f); x+=w*dx;y+=w*dy;z+=w*dz; } } f[g]=make_float4(x,y,z,0);
}
K colfir(const float* a,float* o,int w,int h){ int x=blockIdx.x*64+threadIdx.x,y=blockIdx.y*2+threadIdx.y; float s=0; for(int j=-6;j<=6;j++){ int r=min(max(y+j,0),h-1); s+=a[r*w+x]*(1.f/(7+j+1)); } o[y*w+x]=s; }
K resample(const float* a,float* o,int w,int h,float c,float s){ int x=blockIdx.x*32+threadIdx.x,y=blockIdx.y*4+threadIdx.y; float u=c*x-s*y+40,v=s*x+c*y+8; int i=(int)u,j=(int)v; float fu=u-i,fv=v-j; i=min(max(i,0),w-2); j=min(max(j,0),h-2); o[y*w+x]=(1-fv)*((1-fu)*a[j*w+i]+fu*a[j*w+i+1])+fv*((1-fu)*a[(j+1)*w+i]+fu*a[(j+1)*w+i+1]); }
K kmstep(const float* x,const float* c,uint32_t* o,float* sums,int n,int k,int d){ // points by planes, centres read by all, atomics
  int g=blockIdx.x*blockDim.x+threadIdx.x; if(g>=n) return; float best=1e30f; int at=0; for(int q=0;q<k;q++){ float s=0; for(int e=0;e<d;e++){ float t=x[e*n+g]-c[q*d+e]; s+=t*t; } if(s<best){ best=s; at=q; } } o[g]=at; atomicAdd(&sums[at],best);
}
K seidel(float* a,int w,int rounds){ // few warps, a chain through memory
  int t=threadIdx.x; float* r=a+blockIdx.x*w; for(int q=0;q<rounds;q++) for(int i=t;i<w;i+=blockDim.x){ float l=i?r[i-1]:0,h=i<w-1?r[i+1]:0; r[i]=.5f*r[i]+.25f*(l+h); __syncthreads(); }
}
