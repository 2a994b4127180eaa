// Kernels that the suite does not have (fresh_kernels.py).
// nvcc -arch=sm_75 -O3 -ptx fresh_kernels.cu, its version set to 6.5 and its target to sm_70, which GPGPU-Sim reads.

typedef unsigned u32;
typedef unsigned char u8;
extern "C"  {
    __global__ void mcpi(const u32*s,u32*out,int n) {
        __shared__ u32 a[256];
        int t=threadIdx.x,i=blockIdx.x*256+t;
        u32 x=s[i],c=0;
        for(int k=0;k<n;k++) {
            x^=x<<13;
            x^=x>>17;
            x^=x<<5;
            float u=(x>>8)*5.96e-8f;
            x^=x<<13;
            x^=x>>17;
            x^=x<<5;
            float v=(x>>8)*5.96e-8f;
            c+=u*u+v*v<1.f;
        }
        a[t]=c;
        __syncthreads();
        for(int d=128;d;d>>=1) {
            if(t<d)a[t]+=a[t+d];
            __syncthreads();
        }
        if(!t)out[blockIdx.x]=a[0];
    }
    __global__ void rhist(const u32*k,u32*h,int n) {
        __shared__ u32 c[64];
        int t=threadIdx.x;
        if(t<64)c[t]=0;
        __syncthreads();
        for(int i=blockIdx.x*128+t;i<n;i+=gridDim.x*128)atomicAdd(&c[(k[i]>>5)&63],1u);
        __syncthreads();
        if(t<64)h[t*gridDim.x+blockIdx.x]=c[t];
    }
    __global__ void floyd(float*d,int n,int k) {
        int i=blockIdx.y*16+threadIdx.y,j=blockIdx.x*16+threadIdx.x;
        __shared__ float r[16],c[16];
        if(threadIdx.y==0)r[threadIdx.x]=d[k*n+j];
        if(threadIdx.x==0)c[threadIdx.y]=d[i*n+k];
        __syncthreads();
        float v=c[threadIdx.y]+r[threadIdx.x];
        if(v<d[i*n+j])d[i*n+j]=v;
    }
    __global__ void sobel(const float*a,float*o,int w,int h) {
        int x=blockIdx.x*32+threadIdx.x,y=blockIdx.y*8+threadIdx.y;
        if(x<1||y<1||x>=w-1||y>=h-1)return;
        const float*p=a+y*w+x;
        float gx=p[-w+1]+2*p[1]+p[w+1]-p[-w-1]-2*p[-1]-p[w-1];
        float gy=p[w-1]+2*p[w]+p[w+1]-p[-w-1]-2*p[-w]-p[-w+1];
        o[y*w+x]=sqrtf(gx*gx+gy*gy);
    }
    __global__ void ell(const float*v,const u32*c,const float*x,float*y,int n,int m) {
        int i=blockIdx.x*blockDim.x+threadIdx.x;
        if(i>=n)return;
        float s=0;
        for(int k=0;k<m;k++)s+=v[k*n+i]*x[c[k*n+i]];
        y[i]=s;
    }
    __global__ void pcr(const float*a,const float*b,const float*c,const float*d,float*x) {
        __shared__ float A[128],B[128],C[128],D[128];
        int t=threadIdx.x,i=blockIdx.x*128+t;
        A[t]=a[i];
        B[t]=b[i];
        C[t]=c[i];
        D[t]=d[i];
        __syncthreads();
        for(int s=1;s<128;s*=2) {
            int l=t-s<0?0:t-s,r=t+s>127?127:t+s;
            float p=t-s<0?0:A[t]/B[l],q=t+s>127?0:C[t]/B[r];
            float na=-A[l]*p,nb=B[t]-C[l]*p-A[r]*q,nc=-C[r]*q,nd=D[t]-D[l]*p-D[r]*q;
            __syncthreads();
            A[t]=na;
            B[t]=nb;
            C[t]=nc;
            D[t]=nd;
            __syncthreads();
        }
        x[i]=D[t]/B[t];
    }
    __global__ void knn(const float*q,const float*p,float*best,int n,int np) {
        __shared__ float s[3*64];
        int t=threadIdx.x,i=blockIdx.x*64+t;
        float x=q[i],y=q[n+i],z=q[2*n+i],b=1e30f;
        for(int k=0;k<np;k+=64) {
            s[t]=p[k+t];
            s[64+t]=p[np+k+t];
            s[128+t]=p[2*np+k+t];
            __syncthreads();
            for(int j=0;j<64;j++) {
                float u=x-s[j],v=y-s[64+j],w=z-s[128+j];
                b=fminf(b,u*u+v*v+w*w);
            }
            __syncthreads();
        }
        best[i]=b;
    }
    __global__ void lbm(const float*f,float*g,int w,int h) {
        int x=blockIdx.x*64+threadIdx.x,y=blockIdx.y;
        int n=w*h;
        float r=0,u=0,v=0,q[9];
        const int cx[9]={0,1,0,-1,0,1,-1,-1,1},cy[9]={0,0,1,0,-1,1,1,-1,-1};
#pragma unroll
        for(int k=0;k<9;k++) {
            int a=(x-cx[k]+w)%w,b=(y-cy[k]+h)%h;
            q[k]=f[k*n+b*w+a];
            r+=q[k];
            u+=cx[k]*q[k];
            v+=cy[k]*q[k];
        }
        u/=r;
        v/=r;
        float e=1.5f*(u*u+v*v);
#pragma unroll
        for(int k=0;k<9;k++) {
            float c=3*(cx[k]*u+cy[k]*v);
            float t=r*(1+c+.5f*c*c-e)*(k==0?.444f:k<5?.111f:.0278f);
            g[k*n+y*w+x]=q[k]-.6f*(q[k]-t);
        }
    }
    __global__ void rowdot(const float*a,const float*x,float*y,int n) {
        __shared__ float s[128];
        int t=threadIdx.x;
        float v=0;
        for(int k=t;k<n;k+=128)v+=a[blockIdx.x*n+k]*x[k];
        s[t]=v;
        __syncthreads();
        for(int d=64;d;d>>=1) {
            if(t<d)s[t]+=s[t+d];
            __syncthreads();
        }
        if(!t)y[blockIdx.x]=s[0];
    }
    __global__ void bilat(const float*a,float*o,int w,int h) {
        int x=blockIdx.x*16+threadIdx.x,y=blockIdx.y*16+threadIdx.y;
        float c=a[y*w+x],s=0,n=0;
        for(int j=-2;j<=2;j++)for(int i=-2;i<=2;i++) {
            int u=min(max(x+i,0),w-1),v=min(max(y+j,0),h-1);
            float p=a[v*w+u];
            float e=__expf(-(p-c)*(p-c)-.1f*(i*i+j*j));
            s+=e*p;
            n+=e;
        }
        o[y*w+x]=__fdividef(s,n);
    }
    __global__ void life(const u8*a,u8*b,int w,int h) {
        int x=blockIdx.x*blockDim.x+threadIdx.x,y=blockIdx.y;
        int l=(x+w-1)&(w-1),r=(x+1)&(w-1),u=((y+h-1)&(h-1))*w,d=((y+1)&(h-1))*w,m=y*w;
        int n=a[u+l]+a[u+x]+a[u+r]+a[m+l]+a[m+r]+a[d+l]+a[d+x]+a[d+r];
        b[m+x]=n==3||(n==2&&a[m+x]);
    }
    __global__ void oddeven(u32*k) {
        __shared__ u32 s[512];
        int t=threadIdx.x,b=blockIdx.x*512;
        s[t]=k[b+t];
        s[t+256]=k[b+t+256];
        __syncthreads();
        for(int p=0;p<48;p++) {
            int i=2*t+(p&1);
            if(i+1<512&&s[i]>s[i+1]) {
                u32 v=s[i];
                s[i]=s[i+1];
                s[i+1]=v;
            }
            __syncthreads();
        }
        k[b+t]=s[t];
        k[b+t+256]=s[t+256];
    }
    __global__ void match(const u8*text,const u8*pat,u32*hits,int n,int m) {
        int i=blockIdx.x*blockDim.x+threadIdx.x;
        if(i>=n-m)return;
        int k=0;
        while(k<m&&text[i+k]==pat[k])k++;
        hits[i]=k;
    }
    __global__ void gram(const float*a,float*g,int n,int m) {
        int i=blockIdx.x*8+threadIdx.y,j=blockIdx.y*32+threadIdx.x;
        float s=0;
        for(int k=0;k<m;k++)s+=a[i*m+k]*a[j*m+k];
        g[j*n+i]=s;
    }
    __global__ void horner(const float*x,float*y,int n) {
        int i=blockIdx.x*blockDim.x+threadIdx.x;
        float a=x[i],b=a*.5f,c=a*.25f,d=a*.125f,p=1,q=1,r=1,s=1;
        for(int k=0;k<n;k++) {
            p=p*a+1.1f;
            q=q*b+1.2f;
            r=r*c+1.3f;
            s=s*d+1.4f;
        }
        y[i]=p+q+r+s;
    }
    __global__ void gather(const u32*ix,const float*a,float*o,int n) {
        for(int i=blockIdx.x*blockDim.x+threadIdx.x;i<n;i+=gridDim.x*blockDim.x)o[i]=a[ix[i]]*2.f+a[ix[i]^1];
    }
}
