// Kernels that the suite does not have, looked at last (fresh_kernels.py); compiled as fresh_kernels.cu is.

typedef unsigned u32;
typedef unsigned char u8;
extern "C"  {
    // separable blur: along rows, then columns
    __global__ void blurrow(const float*a,float*o,int w,int h) {
        int x=blockIdx.x*blockDim.x+threadIdx.x,y=blockIdx.y*blockDim.y+threadIdx.y;
        if(x>=w||y>=h)return;
        float s=0;
        for(int d=-4;d<=4;d++) {
            int u=min(max(x+d,0),w-1);
            s+=a[y*w+u]*(5-abs(d));
        }
        o[y*w+x]=s*0.04f;
    }
    __global__ void blurcol(const float*a,float*o,int w,int h) {
        __shared__ float t[24][33];
        int x=blockIdx.x*32+threadIdx.x,y0=blockIdx.y*16;
        for(int r=threadIdx.y;r<24;r+=8) {
            int y=min(max(y0+r-4,0),h-1);
            t[r][threadIdx.x]=a[y*w+x];
        }
        __syncthreads();
        for(int r=threadIdx.y;r<16;r+=8) {
            float s=0;
            for(int d=0;d<9;d++)s+=t[r+d][threadIdx.x]*(d+1);
            o[(y0+r)*w+x]=s;
        }
    }
    // scan of a block by shuffles, which GPGPU-Sim does not run
    __global__ void scanb(const u32*a,u32*o,u32*sums) {
        __shared__ u32 s[32];
        int i=blockIdx.x*blockDim.x+threadIdx.x,l=threadIdx.x&31,w=threadIdx.x>>5;
        u32 v=a[i];
        for(int d=1;d<32;d<<=1) {
            u32 p=__shfl_up_sync(~0u,v,d);
            if(l>=d)v+=p;
        }
        if(l==31)s[w]=v;
        __syncthreads();
        if(w==0) {
            u32 q=l<(int)(blockDim.x>>5)?s[l]:0;
            for(int d=1;d<32;d<<=1) {
                u32 p=__shfl_up_sync(~0u,q,d);
                if(l>=d)q+=p;
            }
            s[l]=q;
        }
        __syncthreads();
        v+=w?s[w-1]:0;
        o[i]=v;
        if(threadIdx.x==blockDim.x-1)sums[blockIdx.x]=v;
    }
    // rows of a sparse matrix, a warp each, of uneven lengths
    __global__ void csrwarp(const u32*start,const u32*col,const float*val,const float*x,float*y,int n) {
        int r=(blockIdx.x*blockDim.x+threadIdx.x)>>5,l=threadIdx.x&31;
        if(r>=n)return;
        float s=0;
        for(u32 k=start[r]+l;k<start[r+1];k+=32)s+=val[k]*x[col[k]];
        for(int d=16;d;d>>=1)s+=__shfl_down_sync(~0u,s,d);
        if(!l)y[r]=s;
    }
    // similarity of bit vectors
    __global__ void jaccard(const u32*a,const u32*b,float*o,int words,int n) {
        int i=blockIdx.x*16+threadIdx.y,j=blockIdx.y*16+threadIdx.x;
        int both=0,any=0;
        for(int w=0;w<words;w++) {
            u32 p=a[w*n+i],q=b[w*n+j];
            both+=__popc(p&q);
            any+=__popc(p|q);
        }
        o[i*n+j]=any?(float)both/any:0.f;
    }
    // dot product, an atomic a block
    __global__ void cgdot(const float*a,const float*b,float*o,int n) {
        __shared__ float s[8];
        float v=0;
        for(int i=blockIdx.x*256+threadIdx.x;i<n;i+=gridDim.x*256)v+=a[i]*b[i];
        for(int d=16;d;d>>=1)v+=__shfl_xor_sync(~0u,v,d);
        if(!(threadIdx.x&31))s[threadIdx.x>>5]=v;
        __syncthreads();
        if(threadIdx.x<8) {
            v=s[threadIdx.x];
            for(int d=4;d;d>>=1)v+=__shfl_xor_sync(0xffu,v,d);
            if(!threadIdx.x)atomicAdd(o,v);
        }
    }
    // open addressing
    __global__ void probe(const u32*keys,const u32*table,u32*o,int n,u32 mask) {
        int i=blockIdx.x*blockDim.x+threadIdx.x;
        if(i>=n)return;
        u32 k=keys[i],h=(k*2654435761u)>>16&mask,c=0;
        while(table[h]!=k&&table[h]!=0&&c<16) {
            h=(h+1)&mask;
            c++;
        }
        o[i]=table[h]==k?h:c;
    }
    // transposed matrix times vector
    __global__ void gemvt(const float*a,const float*x,float*y,int rows,int cols) {
        int c=blockIdx.x*blockDim.x+threadIdx.x;
        if(c>=cols)return;
        float s=0;
        for(int r=0;r<rows;r++)s+=a[r*cols+c]*x[r];
        y[c]=s;
    }
    // options by Monte Carlo
    __global__ void asian(const u32*seed,float*o,int steps) {
        int i=blockIdx.x*blockDim.x+threadIdx.x;
        u32 x=seed[i];
        float p=0.f,m=0.f;
        for(int k=0;k<steps;k++) {
            x^=x<<13;
            x^=x>>17;
            x^=x<<5;
            float u=(x>>8)*5.96e-8f+1e-7f;
            x=x*1664525u+1013904223u;
            float v=(x>>8)*5.96e-8f;
            p+=0.02f*sqrtf(-2.f*__logf(u))*__cosf(6.2831853f*v);
            m+=__expf(p);
        }
        o[i]=fmaxf(m/steps-1.f,0.f);
    }
    // gravity in tiles
    __global__ void gravity(const float*x,const float*y,const float*m,float*ax,float*ay,int n) {
        __shared__ float sx[96],sy[96],sm[96];
        int i=blockIdx.x*96+threadIdx.x;
        float px=x[i],py=y[i],fx=0,fy=0;
        for(int t=0;t<n;t+=96) {
            __syncthreads();
            sx[threadIdx.x]=x[t+threadIdx.x];
            sy[threadIdx.x]=y[t+threadIdx.x];
            sm[threadIdx.x]=m[t+threadIdx.x];
            __syncthreads();
            for(int k=0;k<96;k++) {
                float dx=sx[k]-px,dy=sy[k]-py,r=rsqrtf(dx*dx+dy*dy+0.01f);
                r=r*r*r*sm[k];
                fx+=dx*r;
                fy+=dy*r;
            }
        }
        ax[i]=fx;
        ay[i]=fy;
    }
    // edit distance of strings, a block a pair, along diagonals
    __global__ void edit(const u8*a,const u8*b,u32*o,int n) {
        __shared__ int d[3][130];
        int t=threadIdx.x,p=blockIdx.x;
        for(int k=t;k<130;k+=blockDim.x) {
            d[0][k]=k;
            d[1][k]=k;
            d[2][k]=k;
        }
        __syncthreads();
        for(int s=2;s<=2*n;s++) {
            int i=t+1,j=s-i,*z=d[s%3],*y=d[(s+2)%3],*x=d[(s+1)%3];
            if(i<=n&&j>=1&&j<=n) {
                int c=a[p*n+i-1]!=b[p*n+j-1];
                int v=min(min(y[i-1],y[i])+1,x[i-1]+c);
                z[i]=v;
            }
            if(t==0) {
                z[0]=s;
            }
            if(s<=n&&t==1)z[s]=s;
            __syncthreads();
        }
        if(t==0)o[p]=d[(2*n)%3][n];
    }
    // permuted copy of structures of 12 bytes
    __global__ void permute(const u32*order,const float*a,float*o,int n) {
        int i=blockIdx.x*blockDim.x+threadIdx.x;
        if(i>=n)return;
        int s=order[i];
        for(int k=0;k<3;k++)o[3*i+k]=a[3*s+k];
    }
    // FFT of 64 points in shared memory, a block of 32 threads each
    __global__ void fft64(const float*re,const float*im,float*ore,float*oim) {
        __shared__ float r[64],q[64];
        int t=threadIdx.x,b=blockIdx.x*64;
        int u=__brev(t)>>26,v=__brev(t+32)>>26;
        r[u]=re[b+t];
        q[u]=im[b+t];
        r[v]=re[b+t+32];
        q[v]=im[b+t+32];
        __syncwarp();
        for(int h=1;h<64;h<<=1) {
            int k=t&(h-1),i=((t-k)<<1)+k,j=i+h;
            float c,s;
            __sincosf(-3.14159265f*k/h,&s,&c);
            float x=r[j]*c-q[j]*s,y=r[j]*s+q[j]*c;
            r[j]=r[i]-x;
            q[j]=q[i]-y;
            r[i]+=x;
            q[i]+=y;
            __syncwarp();
        }
        for(int k=0;k<2;k++) {
            ore[b+t+32*k]=r[t+32*k];
            oim[b+t+32*k]=q[t+32*k];
        }
    }
    // triangular solve by columns in a block
    __global__ void trisolve(const float*a,const float*b,float*x,int n) {
        __shared__ float s[160];
        int t=threadIdx.x,p=blockIdx.x;
        s[t]=b[p*n+t];
        __syncthreads();
        for(int k=0;k<n;k++) {
            if(t==k)s[k]*=0.5f;
            __syncthreads();
            if(t>k)s[t]-=a[k*n+t]*s[k];
        }
        __syncthreads();
        x[p*n+t]=s[t];
    }
}
